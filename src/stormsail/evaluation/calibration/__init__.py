"""Whether the critics' predicted distributions came true."""
