"""Triton kernels by subject."""
