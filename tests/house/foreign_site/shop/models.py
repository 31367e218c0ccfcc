from django.db import models


class Receipt(models.Model):
    order = models.IntegerField(unique=True)
