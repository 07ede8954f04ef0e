"""Applications of sampling: training by sampling, the temperature, the sampler's settings, and timings."""
