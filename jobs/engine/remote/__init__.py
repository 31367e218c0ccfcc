"""Remote workers: offer jobs to them, start the jobs, renew their leases, record their results."""
