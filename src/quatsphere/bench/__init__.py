"""Speed, memory and how both grow: every figure from one process, contenders interleaved, ratios first."""
