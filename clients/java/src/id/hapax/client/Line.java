package id.hapax.client;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.IntFunction;
import java.util.logging.Level;

/** What a client has in hand of a tag: a stretch that callers take from, and the next one. */
class Line {
    private static final long QUICK = 5_000_000_000L; // nanoseconds that a stretch lasts, around
    private static final long SLOW = 20_000_000_000L; // the ten seconds that it should
    private static final long PAUSE = 50_000_000L; // after all servers were asked in vain; it doubles
    private static final long MAX_PAUSE = 1_000_000_000L;

    /** What a call wants, and what it has of that. */
    static final class Want {
        final long[] got;
        final long until; // of System.nanoTime
        int filled;
        Stretch first; // of those it has numbers of: later ones end later; null: none that ends
        volatile CompletableFuture<Void> own; // the fetch that this call began

        Want(int count, long until) {
            this.got = new long[count];
            this.until = until;
        }

        int missing() {
            return got.length - filled;
        }

        void fill(Stretch stretch) {
            for (int n = Math.min(missing(), stretch.left()); n > 0; n--) {
                got[filled++] = stretch.id(stretch.used++);
            }
        }
    }

    private final HapaxClient client;
    private final String path;
    private final ReentrantLock lock = new ReentrantLock(); // guards what follows; never held while waiting
    Stretch current;
    Stretch spare; // the next one; null: there is none yet
    CompletableFuture<Void> fetch; // the one on its way
    private volatile int step; // this and what follows is written by the one fetch, or under the lock
    private volatile String last; // the latest receipt
    private volatile boolean keeps = true; // false: every number is for the call that takes it
    private volatile long pause = PAUSE;
    private volatile long retryAt = System.nanoTime();
    private boolean dead; // it was handed back
    volatile HapaxException said; // the last that a server said since the fetch began; null: none did

    Line(HapaxClient client, String path) {
        this.client = client;
        this.path = path;
        step = client.minStep;
    }

    /**
     * Adds what is in hand to what a call has, or gives that up where it ended. It returns what to
     * wait for if that is not enough, or else null.
     */
    CompletableFuture<Void> pick(Want want) {
        CompletableFuture<Void> begun;
        boolean enough;
        lock.lock();
        try {
            if (dead) { // and the caller takes another
                return CompletableFuture.completedFuture(null);
            }
            if (want.first != null && over(want.first)) { // while the call waited
                want.filled = 0;
                want.first = null;
            }
            while (want.missing() > 0 && advance()) {
                want.first = want.first == null ? current : want.first;
                want.fill(current);
            }
            enough = want.missing() == 0;
            boolean half = client.ahead && keeps && spare == null && current != null && 2 * current.used >= current.count;
            if (fetch != null || enough && !(half && System.nanoTime() - retryAt >= 0)) {
                return enough ? null : fetch;
            }
            fetch = begun = new CompletableFuture<>();
            said = null;
        } finally {
            lock.unlock();
        }
        want.own = enough ? null : begun;
        try {
            client.executor.execute(() -> fetch(begun, enough ? null : want));
        } catch (RejectedExecutionException e) {
            end(begun, HapaxException.closed());
        } catch (OutOfMemoryError e) { // no thread is to be had
            end(begun, HapaxException.unavailable(e.getMessage(), e));
        }
        return enough ? null : begun;
    }

    /**
     * Puts the spare stretch in the place of one that is used up or over, and lets the step follow.
     * It reports whether there is a number.
     */
    private boolean advance() {
        while (current == null || current.left() == 0 || over(current)) {
            if (current != null) {
                long lasted = System.nanoTime() - current.began;
                if (current.left() == 0 && lasted < QUICK) {
                    step = Math.min(client.maxStep, 2 * step);
                } else if (lasted > SLOW) {
                    step = Math.max(client.minStep, step / 2);
                }
            }
            current = spare;
            spare = null;
            if (current == null) {
                return false;
            }
            current.began = System.nanoTime();
        }
        return true;
    }

    boolean over(Stretch stretch) {
        return stretch.over();
    }

    /** Fetches for a call that waits, or ahead, which disturbs nobody if it fails. */
    private void fetch(CompletableFuture<Void> done, Want want) {
        HapaxException failed = null;
        try {
            if (want != null) {
                persist(want.missing(), false, want.until, count -> take(count, want, want.until));
            } else {
                take(step, null, System.nanoTime() + client.timeout);
            }
        } catch (HapaxException e) {
            if (want == null) {
                retryAt = System.nanoTime() + Math.max(pause, e.retryAfter);
                pause = Math.min(MAX_PAUSE, 2 * pause);
                step = e.status == 429 || e.status == 507 ? client.minStep : step;
                HapaxClient.LOG.log(Level.FINE, "fetching ahead failed", e);
            }
            failed = want == null ? null : e;
        } catch (RuntimeException | Error e) {
            failed = HapaxException.unavailable(e.toString(), e);
        } finally {
            end(done, failed);
        }
    }

    private void end(CompletableFuture<Void> done, HapaxException failed) {
        lock.lock();
        fetch = null;
        lock.unlock();
        if (failed != null) {
            done.completeExceptionally(failed);
        }
        done.complete(null); // unless it failed
    }

    private Void take(int count, Want want, long until) {
        String body = "{\"count\":" + count + (last == null ? "" : ",\"after\":" + Json.quote(last)) + "}";
        Stretch stretch = client.servers.ask(path + "/take", body, until, (answer, sent, wall) -> new Stretch(answer, count, sent, wall));
        lock.lock();
        try {
            if (!dead) { // otherwise a hand-back was sent
                keeps = keeps && stretch.keeps; // for good
                last = keeps ? stretch.receipt : last;
                pause = PAUSE;
                retryAt = System.nanoTime();
                spare = keeps ? stretch : spare;
                if (!keeps && want != null) {
                    want.fill(stretch);
                }
            }
        } finally {
            lock.unlock();
        }
        return null;
    }

    /** Asks until a server answers, or the deadline is over. */
    <T> T persist(int need, boolean modest, long until, IntFunction<T> ask) {
        HapaxException said = null; // the last that a server said
        for (long wait = PAUSE;; wait = Math.min(MAX_PAUSE, 2 * wait)) {
            int count = modest || !keeps ? need : Math.min(HapaxClient.MAX_COUNT, Math.max(step, need));
            try {
                return ask.apply(count);
            } catch (HapaxException e) {
                long pause = Math.max(wait, e.retryAfter);
                said = said == null || e.status > 0 ? e : said;
                if (e.last || e.status == 507 && count == need || e.status != 507 && System.nanoTime() + pause - until >= 0) {
                    throw e.last ? e : said;
                }
                this.said = said;
                if (e.status == 429 || e.status == 507) {
                    modest = true;
                    step = client.minStep;
                }
                if (e.status != 507) {
                    client.pause(pause);
                }
            }
        }
    }

    /** Hands back what nobody was given. From here on it is dead, whatever the answer. */
    void handBack(long until) {
        lock.lock();
        CompletableFuture<Void> waited = fetch;
        lock.unlock();
        if (waited != null) {
            try {
                waited.get(Math.max(0, until - System.nanoTime()), TimeUnit.NANOSECONDS);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            } catch (ExecutionException | TimeoutException e) {
                HapaxClient.LOG.log(Level.FINE, "what is on its way is a gap", e);
            }
        }
        lock.lock();
        dead = true;
        Stretch earlier = current;
        Stretch later = spare == null ? current : spare;
        current = spare = null;
        lock.unlock();
        int unused = later == null ? 0 : later.left();
        if (earlier != later && earlier != null && later.returnable >= unused + earlier.left()) {
            unused += earlier.left(); // the stretches adjoin
        }
        if (unused > 0 && later.receipt != null) {
            try {
                client.servers.ask(path + "/handback", "{\"receipt\":" + Json.quote(later.receipt) + ",\"unused\":" + unused + "}", until, (answer, sent, wall) -> null);
            } catch (HapaxException e) {
                HapaxClient.LOG.log(Level.FINE, "what was handed back may be a gap", e);
            }
        }
    }
}
