"""Kubernetes on local nodes: its programs, images and configuration, and what a node gets."""
