"""Benchmarks of speed, memory and scaling; candidates run interleaved in one process and are compared by ratios."""
