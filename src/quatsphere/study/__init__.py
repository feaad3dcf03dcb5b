"""The study: every row of the paper's tables as a variant, plans of cells, a runner, claims, statistics, tables."""
