from jobs.models.activity import Action, Activity
from jobs.models.failed_attempt import FailedAttempt
from jobs.models.group import FailureMode, GroupAction, GroupMode, GroupStatus, GroupVerb, JobGroup, JobTemplate
from jobs.models.job import DISPATCH_ORDER, Gate, Job, JobRun
from jobs.models.limit import ConcurrencyLimit, Lease, LeaseKind, LimitScope
from jobs.models.rollup import JobMinute
from jobs.models.run import JobEvent, JobLog
from jobs.models.system import ShareAccount, SystemSnapshot
from jobs.models.target import LaneMark, Target
from jobs.models.token import ApiToken
from jobs.models.worker import Poller, Worker, WorkerState
