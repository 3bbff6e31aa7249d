package id.hapax.hibernate;

import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;
import org.hibernate.annotations.IdGeneratorType;

/** Has hapax issue the identifiers of an entity, of type {@code Long} or {@code String}. */
@IdGeneratorType(HapaxIdGenerator.class)
@Retention(RetentionPolicy.RUNTIME)
@Target({ElementType.FIELD, ElementType.METHOD})
public @interface HapaxId {
    /**
     * Returns the tag whose numbers they are.
     *
     * @return the tag
     */
    String value();
}
