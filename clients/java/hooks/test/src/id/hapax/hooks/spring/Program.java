package id.hapax.hooks.spring;

import id.hapax.hibernate.HapaxId;
import jakarta.persistence.Entity;
import jakarta.persistence.Id;
import jakarta.persistence.Table;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.data.jpa.repository.JpaRepository;
import org.springframework.data.jpa.repository.config.EnableJpaRepositories;

/** A program of Spring Boot with one table. */
@SpringBootApplication
@EnableJpaRepositories(considerNestedRepositories = true)
public class Program {
    /** A row of it. */
    @Entity
    @Table(name = "by_spring")
    public static class Row {
        @Id
        @HapaxId("orders")
        Long id;
    }

    /** What inserts rows. */
    public interface Rows extends JpaRepository<Row, Long> {}
}
