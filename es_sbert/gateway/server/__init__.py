"""The HTTP server of the gateway, the application that dispatches requests, and the gateway's own endpoints."""
