"""Remote workers: offer jobs to them, start what they take, renew their leases, record their results."""
