"""The operations themselves: of each its sites, plan, equations and published plans."""
