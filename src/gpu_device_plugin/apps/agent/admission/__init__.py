"""Admission: a holder gets a grant that is durable, or gives it back; it knows no front."""
