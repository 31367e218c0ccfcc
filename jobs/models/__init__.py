from jobs.models.activity import Action, Activity
from jobs.models.failed_attempt import FailedAttempt
from jobs.models.group import FailureMode, GroupAction, GroupMode, GroupStatus, GroupVerb, JobGroup, JobTemplate
from jobs.models.job import DISPATCH_ORDER, Gate, Job, JobRun, JobTag
from jobs.models.limit import ConcurrencyLimit, Lease, LeaseKind, LimitScope, TokenSpend
from jobs.models.rollup import JobMinute
from jobs.models.run import JobEvent, JobLog
from jobs.models.system import ShareAccount, SystemSnapshot
from jobs.models.target import LaneMark, Target
from jobs.models.token import ApiToken
from jobs.models.waiter import Waiter
from jobs.models.worker import Poller, Worker, WorkerState
