"""The scheduler over HTTP: who asks, whether they may, and the engine's answer as JSON."""
