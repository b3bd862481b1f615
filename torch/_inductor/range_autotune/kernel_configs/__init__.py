"""Configs of Triton kernels, each chosen for the sizes that the kernel runs at."""
