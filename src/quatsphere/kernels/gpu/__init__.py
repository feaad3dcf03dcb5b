"""Fused kernels for GPUs (Triton), which is imported by the first call of an operator."""
