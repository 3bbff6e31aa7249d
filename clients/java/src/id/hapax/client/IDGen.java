package id.hapax.client;

/** The shape in which programs that embed Leaf ask for numbers. */
public interface IDGen {
    /**
     * Issues a number. It never throws.
     *
     * @param key the tag
     * @return the number, or why there is none
     */
    Result get(String key);

    /**
     * Reports whether a server answers.
     *
     * @return true if one does
     */
    boolean init();
}
