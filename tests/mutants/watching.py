"""The bugs of those who watch a trader: the dashboard's guard, its token, alerts."""

from mutants.harness import Mutant
from mutants.nodes import unit

GUARD = "execution/operator/dashboard/guard.py"
SERVER = "execution/operator/dashboard/server.py"
TOKEN = "execution/operator/dashboard/token.py"  # noqa: S105 - the name of a file
FOLDER = "execution/operator/dashboard/folder.py"
HISTORY = "execution/operator/dashboard/history.py"
ALERTS = "execution/operator/alerts.py"


def _own(name: str, file: str, old: str, new: str, test: str, module: str) -> Mutant:
    return Mutant(f"watching-{name}", "R29", file, old, new, unit(module, test, part="execution"))


ATTACKERS = "test_no_attacker_changes_anything_by_any_route_and_method"

WATCHING = (
    _own(
        "an-account-that-cannot-be-read-ends-the-stream",
        SERVER,
        "except StormsailError as error:\n                    message",
        "except KeyError as error:\n                    message",
        "test_the_stream_tells_what_cannot_be_read_and_goes_on",
        "dashboard",
    ),
    _own(
        "history-read-anew-at-every-look",
        HISTORY,
        "        if origin != self._origin:\n",
        "        if origin:\n",
        "test_a_look_reads_what_is_new_however_long_the_account_has_traded",
        "dashboard_folder",
    ),
    _own(
        "open-orders-forgotten-after-a-look",
        HISTORY,
        "names = (*self._open, *(",
        "names = (*(), *(",
        "test_what_is_remembered_between_looks_is_what_a_first_look_sees",
        "dashboard_folder",
    ),
    _own(
        "trimming-not-noticed",
        HISTORY,
        "origin = (journal.epoch, first)",
        "origin = (journal.epoch, first is None)",
        "test_a_journal_that_was_trimmed_or_replaced_is_read_anew",
        "dashboard_folder",
    ),
    _own(
        "host-not-checked",
        GUARD,
        "if host.lower() not in self.hosts:",
        "if not host:",
        ATTACKERS,
        "dashboard",
    ),
    _own(
        "origin-of-get-not-checked",
        GUARD,
        "if origin is not None and",
        'if method == "POST" and origin is not None and',
        ATTACKERS,
        "dashboard",
    ),
    _own(
        "token-not-compared",
        GUARD,
        "if hmac.compare_digest(bearer.encode(), self.token.encode()):",
        "if bearer:",
        ATTACKERS,
        "dashboard",
    ),
    _own(
        "no-lock-out",
        GUARD,
        "if tries.wrong >= WRONG_TOKENS:",
        "if tries.wrong > 10 * WRONG_TOKENS:",
        "test_wrong_tokens_lock_one_address_out_for_a_minute",
        "dashboard",
    ),
    _own(
        "everybody-reads",
        GUARD,
        'if method in ("GET", "HEAD") and self.open_reading:',
        'if method in ("GET", "HEAD"):',
        "test_reading_needs_the_token_where_other_machines_can_ask",
        "dashboard",
    ),
    _own(
        "kill-by-get",
        SERVER,
        'Route("/api/kill", answers.kill, methods=["POST"])',
        'Route("/api/kill", answers.kill, methods=["GET", "POST"])',
        "test_only_a_post_with_the_token_trips_the_kill_switch",
        "dashboard",
    ),
    _own(
        "token-for-all",
        TOKEN,
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)",
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)",
        "test_a_token_is_made_once_and_for_its_owner_alone",
        "dashboard",
    ),
    _own(
        "tail-of-single-bars",
        HISTORY,
        "returns = self._equity[bars:, 1] / self._equity[:-bars, 1] - 1.0",
        "returns = self._equity[1:, 1] / self._equity[:-1, 1] - 1.0",
        "test_the_realised_tail_is_that_of_windows_of_the_horizon",
        "dashboard_folder",
    ),
    _own(
        "health-before-a-sign-of-life",
        FOLDER,
        "heartbeat_age_s=uptime_s if status.pulse_age_s is None else status.pulse_age_s,",
        "heartbeat_age_s=status.pulse_age_s or 0.0,",
        "test_without_a_sign_of_life_the_loop_is_as_old_as_its_start",
        "dashboard_folder",
    ),
    _own(
        "alerts-without-cool-down",
        ALERTS,
        "self._next_ns[alert.kind] = now + self._cooldown",
        "self._next_ns[alert.kind] = now",
        "test_the_first_of_a_kind_goes_at_once_and_the_rest_are_counted",
        "alerts",
    ),
    _own(
        "alerts-show-passwords",
        ALERTS,
        "service[0].url(privacy=True)",
        "service[0].url(privacy=False)",
        "test_a_service_that_refuses_is_reported_without_its_password",
        "alerts",
    ),
)
