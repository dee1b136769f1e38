"""What travels between processes: message structs, event structs, and the framing of both."""
