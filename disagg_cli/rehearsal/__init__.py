"""Models small enough to run a topology on CPUs."""
