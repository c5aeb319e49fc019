"""What 0.1.0 wrote, brought to today's form when it is read: nothing else parses a name."""
