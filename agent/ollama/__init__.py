"""Ollama beside us: the names it gives, the store it keeps on disk, and its server, none of which we ever change."""
