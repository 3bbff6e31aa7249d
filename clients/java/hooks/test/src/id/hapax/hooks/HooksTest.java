package id.hapax.hooks;

import com.baomidou.mybatisplus.annotation.TableId;
import com.baomidou.mybatisplus.annotation.TableName;
import com.baomidou.mybatisplus.core.MybatisConfiguration;
import com.baomidou.mybatisplus.core.MybatisSqlSessionFactoryBuilder;
import com.baomidou.mybatisplus.core.mapper.BaseMapper;
import com.baomidou.mybatisplus.core.toolkit.GlobalConfigUtils;
import id.hapax.client.HapaxClient;
import id.hapax.client.StallingClient;
import id.hapax.client.TestServer;
import id.hapax.client.TestServer.Failed;
import id.hapax.hibernate.HapaxId;
import id.hapax.hooks.spring.Program;
import id.hapax.mybatisplus.HapaxIdentifierGenerator;
import jakarta.persistence.Entity;
import jakarta.persistence.Id;
import jakarta.persistence.Table;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.Statement;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.function.Function;
import java.util.logging.Level;
import java.util.logging.Logger;
import org.apache.ibatis.datasource.pooled.PooledDataSource;
import org.apache.ibatis.mapping.Environment;
import org.apache.ibatis.session.ExecutorType;
import org.apache.ibatis.session.SqlSession;
import org.apache.ibatis.session.SqlSessionFactory;
import org.apache.ibatis.transaction.jdbc.JdbcTransactionFactory;
import org.hibernate.HibernateException;
import org.hibernate.MappingException;
import org.hibernate.SessionFactory;
import org.hibernate.cfg.Configuration;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.health.contributor.HealthIndicator;
import org.springframework.boot.health.contributor.Status;
import org.springframework.context.ConfigurableApplicationContext;

/** Eight workers insert rows by each hook into a real database: no number twice, and few requests. */
public final class HooksTest {
    private static final int WORKERS = 8;
    private static final int ROWS = System.getenv("HAPAX_TEST_SOAK") != null ? 100_000 : 10_000;
    private static final int AT_ONCE = 50;

    /** Inserts so many rows. */
    interface Insert {
        void rows(int count) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        System.setProperty("org.jboss.logging.provider", "jdk");
        Logger.getLogger("").setLevel(Level.SEVERE);
        try (Database postgres = Database.postgres()) {
            hibernate(postgres.url);
            doesNotStall(postgres.url, HapaxClient.Builder::build, Duration.ofMinutes(30));
            try {
                doesNotStall(postgres.url, StallingClient::new, Duration.ofSeconds(1));
                throw new Failed("a client that stalls is not noticed");
            } catch (HibernateException e) {
                check(e.getMessage().contains("it stalled"), "it fails otherwise: " + e.getMessage());
            }
            spring(postgres.url);
        }
        try (Database mariadb = Database.mariadb()) {
            mybatis(mariadb.url);
        }
        System.out.println("java hooks: all passed");
    }

    private static void check(boolean ok, String why) {
        if (!ok) {
            throw new Failed(why);
        }
    }

    /** Has workers insert, and looks at what is in the table, and at what the server was asked. */
    private static void insert(TestServer server, String url, String table, Insert insert) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(WORKERS);
        List<Future<Void>> all = new ArrayList<>();
        for (int i = 0; i < WORKERS; i++) {
            all.add(pool.submit(() -> {
                for (int rows = ROWS / WORKERS; rows > 0; rows -= AT_ONCE) {
                    insert.rows(Math.min(rows, AT_ONCE));
                }
                return null;
            }));
        }
        for (Future<Void> one : all) {
            one.get();
        }
        pool.shutdown();
        try (Connection c = DriverManager.getConnection(url); Statement s = c.createStatement();
                ResultSet r = s.executeQuery("SELECT count(DISTINCT id), min(id) FROM " + table)) {
            r.next();
            check(r.getInt(1) == ROWS, table + " has " + r.getInt(1) + " rows"); // a number twice fails the primary key
            check(r.getLong(2) == 1, table + " begins with " + r.getLong(2)); // its numbers are the server's
        }
        List<Integer> takes = server.takes();
        check(takes.size() <= Math.max(ROWS, 10_000) / 500, "requests of " + takes);
        System.out.println(table + ": " + ROWS + " rows, " + takes.size() + " requests");
    }

    @Entity
    @Table(name = "by_hibernate")
    static class Row {
        @Id
        @HapaxId("orders")
        Long id;
    }

    @Entity
    @Table(name = "by_text")
    static class TextRow {
        @Id
        @HapaxId("texts")
        String id;
    }

    @Entity
    @Table(name = "by_nobody")
    static class Wrong {
        @Id
        @HapaxId("wrong")
        Integer id;
    }

    private static Configuration configuration(String url, Class<?>... entities) {
        Configuration c = new Configuration()
                .setProperty("hibernate.connection.url", url)
                .setProperty("hibernate.connection.pool_size", "10")
                .setProperty("hibernate.jdbc.batch_size", "50")
                .setProperty("hibernate.hbm2ddl.auto", "update");
        for (Class<?> entity : entities) {
            c.addAnnotatedClass(entity);
        }
        return c;
    }

    private static void hibernate(String url) throws Exception {
        try (TestServer server = TestServer.plain("{}")) {
            try (SessionFactory sessions = configuration(url, Row.class, TextRow.class).setProperty("hapax.servers", server.servers.get(0)).buildSessionFactory()) {
                insert(server, url, "by_hibernate", count -> sessions.inTransaction(session -> {
                    for (int i = 0; i < count; i++) {
                        session.persist(new Row());
                    }
                }));
                TextRow text = new TextRow();
                sessions.inTransaction(session -> session.persist(text));
                check("1".equals(text.id), "a text is " + text.id);
            }
            check(server.ask("/requests", null).contains("handback"), "the client is not closed with the sessions");
        }
        for (Configuration wrong : List.of(configuration(url, Row.class), configuration(url, Wrong.class).setProperty("hapax.servers", "http://127.0.0.1:1"))) {
            try (SessionFactory sessions = wrong.buildSessionFactory()) {
                throw new Failed("a wrong configuration is taken");
            } catch (MappingException e) {
                check(e.getMessage().contains("want"), "it says " + e.getMessage());
            }
        }
    }

    /** While numbers are fetched, writers go on with what is in hand: no lock is held. */
    private static void doesNotStall(String url, Function<HapaxClient.Builder, HapaxClient> make, Duration timeout) throws Exception {
        String slow = "{\"servers\":[{\"faults\":[{\"at\":2,\"do\":\"delay\",\"ms\":600000}]}]}";
        try (TestServer server = TestServer.plain(slow); HapaxClient client = make.apply(HapaxClient.builder(server.servers.get(0)).timeout(timeout).callTimeout(Duration.ofMinutes(30)))) {
            Configuration c = configuration(url, Row.class);
            c.getProperties().put("hapax.client", client);
            try (Connection clear = DriverManager.getConnection(url); Statement s = clear.createStatement()) {
                s.execute("DELETE FROM by_hibernate");
            }
            try (SessionFactory sessions = c.buildSessionFactory()) {
                for (int i = 0; i < 10; i++) {
                    sessions.inTransaction(session -> session.persist(new Row()));
                }
                check(!client.tag("orders").nextAsync().isDone(), "the rows waited until more were fetched");
            }
        }
    }

    private static void spring(String url) throws Exception {
        try (TestServer server = TestServer.plain("{}")) {
            ConfigurableApplicationContext program = new SpringApplication(Program.class).run(
                    "--spring.datasource.url=" + url, "--spring.jpa.hibernate.ddl-auto=update", "--spring.jpa.properties.hibernate.jdbc.batch_size=50",
                    "--spring.main.banner-mode=off", "--logging.level.root=warn", "--hapax.servers=" + server.servers.get(0), "--hapax.timeout=60s");
            try (program) {
                Program.Rows rows = program.getBean(Program.Rows.class);
                insert(server, url, "by_spring", count -> {
                    List<Program.Row> some = new ArrayList<>();
                    for (int i = 0; i < count; i++) {
                        some.add(new Program.Row());
                    }
                    rows.saveAll(some);
                });
                HealthIndicator health = program.getBean("hapaxHealthIndicator", HealthIndicator.class);
                check(health.health().getStatus().equals(Status.UP), "it is ill: " + health.health());
                program.stop(); // as before a checkpoint
                check(server.ask("/requests", null).contains("handback"), "a program that is stopped hands nothing back");
                program.start();
                rows.save(new Program.Row());
                server.close();
                check(health.health().getStatus().equals(Status.DOWN), "it is well without a server");
            }
        }
    }

    /** A table of MyBatis-Plus. */
    @TableName("by_mybatis")
    static class Plain {
        @TableId
        public Long id;
        public int worker;
    }

    interface PlainMapper extends BaseMapper<Plain> {}

    private static void mybatis(String url) throws Exception {
        try (Connection c = DriverManager.getConnection(url); Statement s = c.createStatement()) {
            s.execute("CREATE TABLE by_mybatis (id BIGINT PRIMARY KEY, worker INT)");
        }
        try (TestServer server = TestServer.plain("{}"); HapaxClient client = HapaxClient.builder(server.servers.get(0)).timeout(Duration.ofMinutes(1)).build()) {
            PooledDataSource source = new PooledDataSource("org.mariadb.jdbc.Driver", url, "root", "");
            MybatisConfiguration configuration = new MybatisConfiguration(new Environment("test", new JdbcTransactionFactory(), source));
            GlobalConfigUtils.getGlobalConfig(configuration).setIdentifierGenerator(new HapaxIdentifierGenerator(client));
            configuration.addMapper(PlainMapper.class);
            SqlSessionFactory sessions = new MybatisSqlSessionFactoryBuilder().build(configuration);
            insert(server, url, "by_mybatis", count -> {
                try (SqlSession session = sessions.openSession(ExecutorType.BATCH)) {
                    for (int i = 0; i < count; i++) {
                        session.getMapper(PlainMapper.class).insert(new Plain());
                    }
                    session.commit();
                }
            });
            source.forceCloseAll();
            check(server.ask("/requests", null).contains("/by_mybatis/take"), "the tag is not the table's name");
        }
    }

    private HooksTest() {}
}
