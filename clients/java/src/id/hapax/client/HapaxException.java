package id.hapax.client;

/** Says why there is no number. */
public final class HapaxException extends RuntimeException {
    private static final long serialVersionUID = 2;

    /** What it is that went wrong. */
    public enum Reason {
        /** No server answered, or those that did cannot issue now. */
        UNAVAILABLE,

        /** No server knows the tag, or it was deleted. */
        NO_SUCH_TAG,

        /** The servers refuse, and asking again will not help. */
        REFUSED,

        /** The client was closed. */
        CLOSED
    }

    /** Whether asking again will not help. */
    final boolean last;

    /** The status of HTTP; 0: no server said so. */
    final int status;

    /** For how many nanoseconds the server is not to be asked. */
    final long retryAfter;

    private final String code;

    HapaxException(String code, String message, boolean last, int status, long retryAfter, Throwable cause) {
        super("hapax: " + message, cause);
        this.code = code;
        this.last = last;
        this.status = status;
        this.retryAfter = retryAfter;
    }

    /** Makes one that no server said, and that asking again will not mend. */
    static HapaxException refused(String code, String message) {
        return new HapaxException(code, message, true, 0, 0, null);
    }

    static HapaxException unavailable(String message, Throwable cause) {
        return new HapaxException("unavailable", message, false, 0, 0, cause);
    }

    static HapaxException closed() {
        return refused("closed", "the client was closed");
    }

    /** What ends the wait of a thread that was interrupted, which it stays. */
    static HapaxException interrupted(boolean closed) {
        Thread.currentThread().interrupt();
        return closed ? closed() : refused("unavailable", "the thread was interrupted while it waited");
    }

    /** Returns the same again, so that each caller gets a stack trace of its own. */
    HapaxException again() {
        return new HapaxException(code, getMessage().substring("hapax: ".length()), last, status, retryAfter, this);
    }

    /**
     * Returns what went wrong, to branch on.
     *
     * @return the reason
     */
    public Reason reason() {
        if (code.equals("tag_not_found") || code.equals("tag_deleted")) {
            return Reason.NO_SUCH_TAG;
        }
        return code.equals("closed") ? Reason.CLOSED : last && !code.equals("unavailable") ? Reason.REFUSED : Reason.UNAVAILABLE;
    }

    /**
     * Returns the server's own code, such as {@code tag_not_found}, or one of {@code unavailable},
     * {@code closed}, {@code invalid_argument}, {@code invalid_tag} and {@code limit_exceeded}.
     *
     * @return the code
     */
    public String code() {
        return code;
    }
}
