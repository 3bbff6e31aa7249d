package id.hapax.client;

/** Says why there is no number. */
public final class HapaxException extends RuntimeException {
    private static final long serialVersionUID = 1;

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

    private final Reason reason;
    private final String code;

    HapaxException(Reason reason, String code, String message, Throwable cause) {
        super(message, cause);
        this.reason = reason;
        this.code = code;
    }

    /**
     * Returns what went wrong, to branch on.
     *
     * @return the reason
     */
    public Reason reason() {
        return reason;
    }

    /**
     * Returns the server's own code, such as {@code tag_not_found}.
     *
     * @return the code; empty if no server gave one
     */
    public String code() {
        return code;
    }

    /** Returns the same again, so that each caller gets a stack trace of its own. */
    HapaxException again() {
        return new HapaxException(reason, code, getMessage(), this);
    }

    /** Returns the code of {@link Result} for this. */
    long resultCode() {
        switch (reason) {
            case NO_SUCH_TAG:
                return Result.NO_SUCH_KEY;
            case REFUSED:
                return Result.REFUSED;
            case CLOSED:
                return Result.NOT_READY;
            default:
                return Result.NOTHING_LEFT;
        }
    }
}
