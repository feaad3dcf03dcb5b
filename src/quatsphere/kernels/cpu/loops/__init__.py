"""Numba loops behind the CPU operators, by subject. Importing a module of this package imports Numba (slow, optional).

Names: an *item* is (image, block of eight heads); a *lane table* holds one head per SIMD lane, (..., 8); `@inlined`
functions are called by compiled code only, `@compiled` ones by Python, and `run_*` splits the work over threads.
"""

LANES = 8
"""Heads per SIMD vector."""
