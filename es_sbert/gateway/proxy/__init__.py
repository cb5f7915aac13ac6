"""HTTP proxy: parse requests strictly and within limits, forward them unchanged, and talk to the engine."""
