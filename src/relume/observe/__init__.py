"""For people who look on: reading runs from outside, live or ended. Whatever is here can never slow or harm a run."""
