import jakarta.persistence.*;
import java.io.*;
import java.util.*;
import org.hibernate.SessionFactory;
import org.hibernate.cfg.Configuration;

/**
 * Writes rows as a program with Hibernate does: Shop URL USER PASSWORD, then lines on standard
 * input, each with the name of an entity and how many rows. It answers each with the numbers of
 * the rows, or with "refused: " and why.
 */
public class Shop {
  /** Numbered from the table hibernate_sequences, with the pooled optimizer and its allocationSize of 50. */
  @Entity(name = "invoices")
  public static class Invoice {
    @Id
    @GeneratedValue(strategy = GenerationType.TABLE, generator = "invoices")
    @TableGenerator(name = "invoices", table = "hibernate_sequences", pkColumnName = "sequence_name", valueColumnName = "next_val", pkColumnValue = "invoices")
    public Long id;
  }

  /** Numbered from a sequence that goes on by 50, with the pooled optimizer. */
  @Entity(name = "parcels")
  public static class Parcel {
    @Id
    @GeneratedValue(strategy = GenerationType.SEQUENCE, generator = "parcels")
    @SequenceGenerator(name = "parcels", sequenceName = "parcels_seq", allocationSize = 50)
    public Long id;
  }

  public static void main(String[] args) throws Exception {
    Configuration c = new Configuration().addAnnotatedClass(Invoice.class).addAnnotatedClass(Parcel.class);
    c.setProperty("jakarta.persistence.jdbc.url", args[0]);
    c.setProperty("jakarta.persistence.jdbc.user", args[1]);
    c.setProperty("jakarta.persistence.jdbc.password", args[2]);
    c.setProperty("hibernate.hbm2ddl.auto", "update");
    try (SessionFactory sessions = c.buildSessionFactory(); BufferedReader in = new BufferedReader(new InputStreamReader(System.in))) {
      System.out.println("ready");
      for (String line; (line = in.readLine()) != null; ) {
        String[] words = line.split(" ");
        List<String> ids = new ArrayList<>();
        String answer;
        try {
          for (int i = 0; i < Integer.parseInt(words[1]); i++) {
            if (words[0].equals("invoices")) {
              Invoice row = new Invoice();
              sessions.inTransaction(s -> s.persist(row));
              ids.add(row.id.toString());
            } else {
              Parcel row = new Parcel();
              sessions.inTransaction(s -> s.persist(row));
              ids.add(row.id.toString());
            }
          }
          answer = String.join(" ", ids);
        } catch (RuntimeException e) {
          Throwable cause = e;
          while (cause.getCause() != null) cause = cause.getCause();
          answer = "refused: " + cause.getMessage().replace('\n', ' ') + " after " + String.join(" ", ids);
        }
        System.out.println(answer);
      }
    }
  }
}
