from django.urls import path

from apps.console.api import views

urlpatterns = [
    path("livez", views.livez, name="livez"),
    path("readyz", views.readyz, name="readyz"),
    path("metrics", views.prometheus, name="metrics"),
]
