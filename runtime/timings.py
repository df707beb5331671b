"""The times of a node: how long it waits for others, and how often it does what is repeated.

`Timings` has them in one place because they hang together: a longer lease without longer silences,
renewals and patience breaks promises in rooms that do not know of each other. A field is a time
that nothing else decides; a property is computed from fields. So change a field, and what depends
on it follows; a combination that breaks a promise is refused with a ValueError.

All times are in seconds. Each node reads them from its `Environment`, and binds what it needs often
when its parts are constructed. Times that only one file knows, and that no other time depends on,
are constants of that file.
"""

from __future__ import annotations

import sys

import attrs

from actors.short_repr import short_repr


@attrs.frozen(kw_only=True)
class Timings:
    """All times that several parts of a node have to agree upon. The defaults are what users
    get.
    """

    # The lease of a node, and what is measured in leases

    lease: float = 5.0
    """How long a node that renews nothing counts as alive: the time to live of its lease in the
    store. So long, and a little more, it takes until the death of a machine is noticed and its
    names move; a death that can be proven is noticed at once. Shorter costs renewals (one write of
    the store per node and `renew_every`), and false deaths of nodes that are only slow; longer
    costs downtime.
    """

    renewals: int = 3
    """How often a lease is renewed within its time. With fewer than three, one renewal that is
    lost puts the lease in doubt, and the named actors of a healthy node pause.
    """

    held_share: float = 2 / 3
    """The share of the lease for which a node relies on it after the last renewal, by its own
    clock. The rest is the gap in which neither the old owner of a name nor a new one serves it: it
    covers the difference of the clocks' speed. Kubernetes' leader election has the same gap
    between "renew deadline" and "lease duration".
    """

    renewal_retries: int = 25
    """How often within a lease a renewal is asked for again while the store refuses or is away.
    More costs requests at a store that is in trouble; fewer waste the time until the pause.
    """

    silence_share: float = 1 / 2
    """The share of a lease for which a connection may be silent; see `silence`."""

    beats: int = 5
    """How many beats an idle connection has within the silence that breaks it. With one, a beat
    that is late breaks a healthy connection.
    """

    client_leases: float = 1.0
    """How many leases the session of a client is kept for; see `client_patience`."""

    orphans: float = 10.0
    """How long the calls of a client without a link go on, and their answers are kept. Longer
    costs the memory of answers that may never be fetched; shorter gives up calls of a client that
    only lost its connection.
    """

    keyed_orphans: float = 30.0
    """How long a call with a key goes on when no request waits for it, so that its repeat, perhaps
    through another gateway, finds it. Longer costs the work of calls that are never repeated.
    """

    unreachable_after: float = 0.1
    """How long a peer may be without a connection before it is shown as unreachable, and before
    lookups go past it: longer than a redial takes, or each broken connection would show.
    """

    redial_first: float = 0.02
    """The longest pause before the first redial of a broken connection; it doubles with each dial
    in vain, up to `redial_most`, and is multiplied by chance.
    """

    redial_most: float = 1.0
    """The longest pause between two redials. Less than `client_patience`, or the session of a
    client ends before its next dial.
    """

    take_back: float = 1.0
    """How long a cancelled spawn waits until its start is undone, so that what its task does next
    finds the name free. Longer holds up tasks whose node does not answer.
    """

    dial: float = 5.0
    """How long a connection may take to come about. The kernel would try a silent address for two
    minutes; another dial may have more luck.
    """

    handshake: float = 5.0
    """How long each step of the handshake may take, and then the resume offer or its answer. A step
    is a whole frame, and there are two of them at most on either side: a machine under load that
    gets on with it is waited for, and a peer that sends single bytes is not. It must cover a round
    trip, or no link ever comes about.
    """

    # Certificates

    files_looked_at: float = 5.0
    """How long after the last look at the files of certificates they are looked at again while no
    handshake does it.
    """

    trust_checked: float = 10.0
    """Within this time after a CA's certificate or a revocation list was found to have changed,
    each connection is made anew, and the certificate at its other end is judged again. Longer
    leaves a revoked one connected; shorter makes handshakes with many peers at the same moment.
    """

    connection_age: float = 86400.0
    """The age at which a connection is made anew in any case where peers show certificates, so that
    a change that no event reports, as the end of a CA's certificate, counts after a day.
    """

    # The store

    store_call: float = 10.0
    """How long a call to the store may take before the store counts as away: one to another node's,
    one to etcd, and one to the embedded store of this very node, whose disk may hang for ever.
    Longer keeps callers waiting; shorter gives up a store that only moves to another node, or an
    etcd that holds an election.
    """

    etcd_attempt: float = 2.5
    """How long one member of an etcd may take before another is asked: longer than an election (a
    second or two), and less than `store_call`, or there is no second attempt.
    """

    etcd_quick_leases: float = 0.2
    """See `etcd_quick`."""

    etcd_slow: float = 0.5
    """A request that was given up after this long speaks against its member, even if it was its
    caller's patience that ended: callers with little patience would else never find the others.
    """

    etcd_silent: float = 5.0
    """After so long without a change, the member at a watch's other end is asked whether it is
    still in touch with the others. Changes that a cut-off member does not report come so much
    later; each such question costs etcd a read.
    """

    # Joining

    join_answer: float = 10.0
    """How long an address that is joined may take to answer, and then what is asked there.
    Error messages name it.
    """

    # The ends of things

    drain: float = 10.0
    """How long a node that leaves may take in all: half of it for the calls that run, and the rest
    for its references, its place in the store and its goodbye.
    """

    stream_cleanup: float = 5.0
    """How long the clean-up of a generator may take once its reader has gone: promised to the
    authors of streams.
    """

    disk_retry: float = 5.0
    """How long a disk is left alone to which no value could be written: it may have room again.
    Longer refuses values that would fit; shorter tries a full disk with each of them.
    """

    first_placement: float = 5.0
    """How long the first start of a child waits for a node that fits: people wait for the error,
    if its spec is wrong. Promised to the authors of supervisors. A restart fails at once with "not
    placed", and is tried again after a while, so that others of the supervisor are not kept
    waiting.
    """

    member_pause: float = 0.02
    """What each member beyond `few_members` adds to the pause between two looks at the members.
    Shorter costs every node an answer of the store for each of many nodes that start or end at the
    same moment; longer shows later the changes that follow another one closely.
    """

    few_members: int = 16
    """So few members are followed without a pause."""

    most_pause: float = 1.0
    """The longest pause between two looks at the members."""

    name_pause: float = 0.005
    """What each change of the names that a look at them has shown adds to the pause before the
    next. Shorter costs every node an answer of the store for almost each name that is claimed or
    released; longer lets a lookup answer for longer with an address that another node has just
    ended.
    """

    most_name_pause: float = 0.05
    """The longest pause between two looks at the names."""

    most_name_changes: int = 500
    """After a look that has shown more changes than this the pause is `name_pause`: a node that
    falls behind would miss what the store keeps no longer.
    """

    # Looking at a node

    inspection: float = 1.0
    """How long the hook `on_inspect` of an actor may take, its wait for its turn and the writing of
    its result included. Promised to the authors of actors. Longer keeps dashboards waiting.
    """

    room_look: float = 0.2
    """From a look for a node with resources left to the next one, of a function that waits for
    them, where nothing is heard of any that were given back.
    """
    statistics_unread: float = 60.0
    """How long after the last reading a node measures its calls on, unless it was opened to measure
    them all the time. Shorter than a reader's pause leaves gaps; longer measures without a reader.
    """

    loop_answer: float = 1.0
    """How long the event loop of a node may take to answer its endpoint for metrics and health,
    which then says that it is blocked.
    """

    metrics_request: float = 5.0
    """How long a request to that endpoint may take to arrive, and its answer to be taken: clients
    that stand still hold connections for no longer.
    """

    failure_text: float = 5.0
    """How long the text of the variables of one failure may take, which user code writes."""

    failure_settling: float = 1.0
    """How long a process that ends waits for such text. What comes later is left out."""

    # Elastic jobs

    loss_margin: float = 1.0
    """So much longer than the lease of an agent of an elastic job it may take until its loss is
    known to the others. Shorter takes a failure that an agent's loss has caused for one of the
    workers' own, and uses up a restart for it.
    """

    def __attrs_post_init__(self) -> None:
        for name, value in attrs.asdict(self).items():
            if not 0 < value <= sys.float_info.max:
                raise ValueError(f"timings: {name} is a positive number, not {short_repr(value)}")
        # With fewer, one renewal that is lost puts the lease in doubt.
        _require(self.renewals >= 3, f"{self.renewals} renewals in a lease are fewer than three")
        _require(self.beats >= 2, "a silence has fewer than two beats")
        _require(self.held_share < 1, "a node relies on its lease until it has ended, or longer")
        # Only a renewal that has a second attempt before the doubt is no gamble.
        _require(
            self.renew_every + self.renewal_retry < self.held,
            f"a lease of {self.lease:g} s is renewed every {self.renew_every:g} s, and again after "
            f"{self.renewal_retry:g} s, but is in doubt after {self.held:g} s",
        )
        # An embedded store has handled what a living node sent before it ends its lease.
        _require(
            self.renew_every < self.expiry_watch,
            f"the store runs {self.expiry_watch:g} s before it ends a lease, but nodes renew only "
            f"every {self.renew_every:g} s",
        )
        # The stand-by loop renews for a blocked loop before its names pause.
        _require(
            self.stood_in_after < self.held,
            f"a blocked loop is stood in for after {self.stood_in_after:g} s, "
            f"but its lease is in doubt after {self.held:g} s",
        )
        # A member of etcd that says nothing costs a renewal less than the names can wait.
        _require(
            self.renew_every + self.etcd_quick < self.held,
            f"a renewal that a member of etcd does not answer is asked of another after "
            f"{self.renew_every + self.etcd_quick:g} s, but the lease is in doubt after "
            f"{self.held:g} s",
        )
        _require(
            self.etcd_attempt <= self.store_call,
            f"a call to the store takes {self.store_call:g} s, and one attempt at a member of etcd "
            f"{self.etcd_attempt:g} s",
        )
        _require(
            self.isolation_patience > 0,
            f"a silence of {self.silence:g} s and a beat of {self.beat:g} s leave nothing of a "
            f"lease of {self.lease:g} s for the patience of isolated processes",
        )
        _require(
            self.unreachable_after < self.silence,
            f"a peer is unreachable {self.unreachable_after:g} s after its connection was lost: "
            f"that is no shorter than the silence of {self.silence:g} s that loses it",
        )
        _require(
            self.redial_first <= self.redial_most,
            f"the first redial comes within {self.redial_first:g} s, which is later than the last "
            f"({self.redial_most:g} s)",
        )

    # The lease

    @property
    def renew_every(self) -> float:
        """From one renewal of a lease to the next: a third of it."""
        return self.lease / self.renewals

    @property
    def renewal_retry(self) -> float:
        """From a renewal that failed to the next attempt. Also between two attempts to follow the
        members while the store is away.
        """
        return self.lease / self.renewal_retries

    def members_pause(self, members: int) -> float:
        """How long a node that sees so many members leaves the store alone after it has answered
        which of them have changed.
        """
        return min(self.most_pause, self.member_pause * max(0, members - self.few_members))

    def names_pause(self, changes: int) -> float:
        """How long a node leaves the store alone after it has answered that so many names have
        changed. The more change at once, the more come together next time.
        """
        if changes > self.most_name_changes:
            return self.name_pause
        return min(self.most_name_pause, self.name_pause * max(1, changes))

    @property
    def held(self) -> float:
        """How long after the last renewal a node relies on its lease: then it is in doubt, and the
        node's named actors pause.
        """
        return self.held_share * self.lease

    @property
    def succession(self) -> float:
        """How long a node that is started waits for the lease of the last one of its name, and the
        start of a child for a name that its dead predecessor may still hold: two leases, for one
        may have been renewed in the moment before.
        """
        return 2 * self.lease

    @property
    def denial_patience(self) -> float:
        """How long a name is looked up again whose owner, always the same, denies having the actor:
        a lease, after which the store names no owner that has ended.
        """
        return self.lease

    # The way to a store that another node serves, or etcd

    @property
    def store_lost(self) -> float:
        """How long the link to the store's node may be without a connection before its addresses
        are asked who is there now. With `store_asked` and a pause it is less than `held`: a node
        whose store was started anew keeps its names.
        """
        return self.lease / 5

    @property
    def store_asked(self) -> float:
        """How long one address may take to say who is there now."""
        return 2 * self.lease / 5

    @property
    def store_asked_again(self) -> float:
        """From one round of such questions to the next, on average."""
        return self.lease / 10

    @property
    def etcd_quick(self) -> float:
        """As `etcd_attempt`, for what needs no leader's disk and is wanted in time, as a renewal
        is, if there is another member to ask.
        """
        return self.etcd_quick_leases * self.lease

    # What the embedded store does about leases

    @property
    def restart_grace(self) -> float:
        """The least that a lease has left when a store is served again: a lease, in which its
        holder finds the way back.
        """
        return self.lease

    @property
    def expiry_watch(self) -> float:
        """For so long the loop of an embedded store has run before it ends a lease. It is longer
        than `renew_every`: what the holder sent in time has then been handled.
        """
        return 2 * self.lease / 5

    @property
    def expiry_look(self) -> float:
        """How often the loop is looked at during `expiry_watch`."""
        return self.lease / 20

    @property
    def expiry_late(self) -> float:
        """A loop of an embedded store that runs later than this has not run meanwhile: the process
        was stopped, the loop blocked, the machine asleep. Longer than `expiry_look`.
        """
        return self.lease / 10

    # The loop of a node, and the one beside it

    @property
    def loop_beat(self) -> float:
        """From one sign of life of a node's event loop, for the loop beside it, to the next."""
        return self.lease / 10

    @property
    def loop_look(self) -> float:
        """From one look of the loop beside to the next."""
        return self.lease / 20

    @property
    def loop_late(self) -> float:
        """A look that comes later than this says nothing about the loop: the process was stopped,
        or the machine is too busy.
        """
        return self.lease / 5

    @property
    def loop_still(self) -> float:
        """A loop that has stood still for so long beyond its beat does not renew by itself: the
        loop beside it stands in.
        """
        return self.lease / 20

    @property
    def stood_in_after(self) -> float:
        """How long after the last renewal the loop beside renews for one that stands still: that
        has had its time to renew, and a little more.
        """
        return self.renew_every + 2 * self.loop_look

    @property
    def block_reported(self) -> float:
        """A loop that has been blocked for so long is reported: half a lease."""
        return self.lease / 2

    # Links

    @property
    def silence(self) -> float:
        """Without a byte for so long, a connection counts as broken: half a lease, so that a peer
        is seen to be unreachable before it is known to be dead.
        """
        return self.silence_share * self.lease

    @property
    def beat(self) -> float:
        """An idle connection carries a ping after so long. A turn of the loop that is later than
        this is not held against the peers.
        """
        return self.silence / self.beats

    @property
    def answering_beat(self) -> float:
        """The same at that end of a link which does not lead it: longer than the other end's pings
        take, so that one ping and its answer serve both ends.
        """
        return 2 * self.beat

    @property
    def link_look(self) -> float:
        """The shortest time between two looks at all links: half a beat."""
        return self.beat / 2

    @property
    def user_timeout(self) -> float:
        """How long the kernel keeps bytes that the peer's kernel does not acknowledge before it
        breaks the connection (TCP_USER_TIMEOUT): a lease, longer than `silence`, which usually
        notices first.
        """
        return self.lease

    @property
    def isolation_patience(self) -> float:
        """How long an isolated process lives without a connection to its node. Until the loss is
        noticed it takes `silence` and up to a beat; with this, a lease: when its name can move, it
        has ended.
        """
        return self.lease - self.silence - self.beat

    @property
    def client_patience(self) -> float:
        """How long the session of a client, or of a node that is not known as a member, is kept
        without a connection: this node does not dial it.
        """
        return self.client_leases * self.lease

    @property
    def departed(self) -> float:
        """After the end of its session a stranger is gone if it has begun no other: longer than its
        calls go on without a link (`orphans`).
        """
        return self.orphans + self.client_patience

    # Looking at a node

    @property
    def isolated_inspection(self) -> float:
        """How long the process of an isolated actor may take to say its state: for the hook, and
        half as long again for the way there and back.
        """
        return 1.5 * self.inspection

    # Leaving

    @property
    def drain_calls(self) -> float:
        """How long a node that leaves waits for the calls that run on it."""
        return self.drain / 2

    @property
    def drain_actors(self) -> float:
        """How long a node that leaves waits for its actors in all, the calls that run among them.
        The rest is for its place in the store.
        """
        return self.drain - self.goodbye

    @property
    def hand_over(self) -> float:
        """How long a node that leaves takes to hand its references over."""
        return 2 * self.drain / 5

    @property
    def goodbye(self) -> float:
        """How long each last step of a node that leaves may take: to write that it drains, to give
        its lease back, and to say goodbye to its peers.
        """
        return self.drain / 10

    @property
    def leaving(self) -> float:
        """After so long the end of a node is cut short, whatever it waits for."""
        return self.drain + 2 * self.goodbye

    # Simulated clusters

    @property
    def convergence(self) -> float:
        """From the last fault until all must be as if there had been none: twelve leases."""
        return 12 * self.lease

    @property
    def quiescence(self) -> float:
        """From the last call until nothing of any call is left: two leases, until the last death is
        known to all, and the time until its calls are given up.
        """
        return 2 * self.lease + self.departed


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise ValueError(f"these timings contradict each other: {why}")
