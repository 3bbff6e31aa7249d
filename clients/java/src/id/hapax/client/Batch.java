package id.hapax.client;

import java.util.concurrent.atomic.AtomicInteger;

/** Numbers that a server has issued to this client. Each is handed to one caller. */
final class Batch {
    private final long[] ids;
    private final AtomicInteger next = new AtomicInteger();

    Batch(long[] ids) {
        this.ids = ids;
    }

    /** Takes the next place; below {@link #size} it has a number that nobody else gets. */
    int take() {
        // It stays put at the end, so that it never overflows.
        return next.get() < ids.length ? next.getAndIncrement() : ids.length;
    }

    long id(int place) {
        return ids[place];
    }

    int size() {
        return ids.length;
    }
}
