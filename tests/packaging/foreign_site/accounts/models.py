from django.contrib.auth.models import AbstractBaseUser, BaseUserManager, PermissionsMixin
from django.db import models


class CustomerManager(BaseUserManager):
    def create_superuser(self, email, password):
        customer = self.model(email=email, is_staff=True, is_superuser=True)
        customer.set_password(password)
        customer.save()
        return customer


class Customer(AbstractBaseUser, PermissionsMixin):
    """A user without a username."""

    email = models.EmailField(primary_key=True)
    is_staff = models.BooleanField(default=False)

    USERNAME_FIELD = "email"
    objects = CustomerManager()
