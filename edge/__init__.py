"""The public side: a stateless Lambda function that answers with receipts."""
