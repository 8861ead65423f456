"""Programs for developers; no part of the product."""
