"""The maths, schemas, receipts, wire protocol and client that every part of the project shares."""
