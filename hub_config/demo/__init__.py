"""The story of the README, played without a person: `hubernate demo`."""
