"""Kubernetes on local nodes."""
