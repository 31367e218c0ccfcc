from django.db import models


class Order(models.Model):
    number = models.IntegerField(unique=True)


class Receipt(models.Model):
    order = models.IntegerField(unique=True)
