class QueueRouter:
    """The queue has a database of its own."""

    def _is_ours(self, label):
        return label.startswith("jobscheduler_")

    def db_for_read(self, model, **hints):
        return "queue" if self._is_ours(model._meta.app_label) else None

    db_for_write = db_for_read

    def allow_relation(self, one, other, **hints):
        return None

    def allow_migrate(self, db, app_label, **hints):
        return (db == "queue") == self._is_ours(app_label)
