from django.contrib.admin import AdminSite

backoffice = AdminSite(name="backoffice")
