"""What a node has: inventory now, health later. Imports nothing of the engine."""
