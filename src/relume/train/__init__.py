"""What a training script touches: the run, its steps, its data, what it protects, and the numbers' surroundings."""
