package id.hapax.client;

import id.hapax.client.HapaxException.Reason;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/**
 * The numbers of one tag: a batch that callers take from, and the next one, which is fetched
 * when half of the first is used.
 */
final class Line {
    private static final long PAUSE_NANOS = 50_000_000L; // after a fetch that failed; it doubles
    private static final long MAX_PAUSE_NANOS = 1_000_000_000L;
    private static final Batch NONE = new Batch(new long[0]);

    private final String tag;
    private final int size;
    private final Servers servers;
    private final Executor executor;

    private volatile Batch current = NONE; // written under the lock
    private volatile boolean ahead; // the next one is there, or on its way; written under the lock

    private final ReentrantLock lock = new ReentrantLock(); // guards what follows; never held while fetching
    private final Condition changed = lock.newCondition();
    private Batch spare; // the next one; null: there is none yet
    private boolean fetching;
    private HapaxException failed; // of the last fetch; null: it went well
    private long retryAt; // of System.nanoTime, if it failed
    private long pause = PAUSE_NANOS;

    Line(String tag, int size, Servers servers, Executor executor) {
        this.tag = tag;
        this.size = size;
        this.servers = servers;
        this.executor = executor;
    }

    /** Issues a number, and waits for one until System.nanoTime reaches the deadline. */
    long next(long deadline) throws InterruptedException {
        while (true) {
            Batch batch = current;
            int place = batch.take();
            if (place < batch.size()) {
                if (place >= batch.size() / 2 && !ahead) {
                    fetchAhead();
                }
                return batch.id(place);
            }
            swap(batch, deadline);
        }
    }

    private void fetchAhead() {
        if (!lock.tryLock()) {
            return; // whoever has it sees to it, or the next caller does
        }
        try {
            startLocked();
        } finally {
            lock.unlock();
        }
    }

    /** Puts the next batch in the place of one that is used up. */
    private void swap(Batch used, long deadline) throws InterruptedException {
        lock.lockInterruptibly();
        try {
            while (current == used) {
                if (spare != null) {
                    current = spare;
                    spare = null;
                    ahead = false;
                    return;
                }
                startLocked();
                long now = System.nanoTime();
                if (!fetching && failed.reason() != Reason.UNAVAILABLE) {
                    throw failed.again();
                }
                if (deadline - now <= 0) {
                    throw failed != null ? failed.again() : new HapaxException(Reason.UNAVAILABLE, "",
                            "hapax: no number of " + Json.quote(tag) + " came in time", null);
                }
                changed.awaitNanos(fetching ? deadline - now : Math.min(deadline, retryAt) - now);
            }
        } finally {
            lock.unlock();
        }
    }

    /** Begins to fetch, unless that is on its way, or failed just now. */
    private void startLocked() {
        if (fetching || spare != null || failed != null && System.nanoTime() - retryAt < 0) {
            return;
        }
        fetching = true;
        ahead = true;
        try {
            executor.execute(this::fetch);
        } catch (RejectedExecutionException e) {
            endLocked(null, Servers.closed());
        }
    }

    private void fetch() {
        Batch batch = null;
        HapaxException error = null;
        try {
            batch = new Batch(servers.next(tag, size));
        } catch (HapaxException e) {
            error = e;
        } catch (RuntimeException e) {
            error = new HapaxException(Reason.UNAVAILABLE, "", "hapax: " + e, e);
        } finally {
            lock.lock();
            try {
                endLocked(batch, error);
            } finally {
                lock.unlock();
            }
        }
    }

    private void endLocked(Batch batch, HapaxException error) {
        fetching = false;
        spare = batch;
        failed = error;
        ahead = batch != null;
        if (batch != null) {
            pause = PAUSE_NANOS;
        } else {
            retryAt = System.nanoTime() + pause;
            pause = Math.min(2 * pause, MAX_PAUSE_NANOS);
        }
        changed.signalAll();
    }
}
