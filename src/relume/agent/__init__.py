"""The agent: starts, watches, fences; owns the arena; on one host the coordinator lives in its loop."""
