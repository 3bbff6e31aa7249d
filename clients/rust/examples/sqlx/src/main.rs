//! Eight tasks insert rows into PostgreSQL, whose primary keys are numbers from hapax. With
//! DATABASE_URL and HAPAX_URL it uses servers that are there; without, it starts its own, and
//! checks that no number came twice, and how many requests there were.

mod servers;

use sqlx::postgres::{PgPool, PgPoolOptions};

const WORKERS: usize = 8;

/// A number for a task, whose thread must not wait: what is in hand at once, or else a thread waits.
async fn next(tag: &hapax::Tag) -> Result<i64, hapax::Error> {
    if let Some(id) = tag.try_next()? {
        return Ok(id);
    }
    let tag = tag.clone();
    tokio::task::spawn_blocking(move || tag.next()).await.expect("it does not panic")
}

async fn insert(pool: PgPool, tag: hapax::Tag, rows: usize) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut transaction = pool.begin().await?;
    for row in 1..=rows {
        let id = next(&tag).await?;
        sqlx::query("INSERT INTO orders (id, text) VALUES ($1, $2)").bind(id).bind("an order").execute(&mut *transaction).await?;
        if row % 100 == 0 {
            transaction.commit().await?;
            transaction = pool.begin().await?;
        }
    }
    transaction.commit().await?;
    Ok(())
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let rows = if std::env::var("HAPAX_TEST_SOAK").is_ok() { 100_000 } else { 10_000 };
    let own = std::env::var("DATABASE_URL").is_err().then(servers::start);
    let (database, hapax) = match &own {
        Some(own) => (own.database(), own.hapax()),
        None => (std::env::var("DATABASE_URL")?, std::env::var("HAPAX_URL")?),
    };
    let pool = PgPoolOptions::new().max_connections(WORKERS as u32).connect(&database).await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS orders (id BIGINT PRIMARY KEY, text TEXT NOT NULL)").execute(&pool).await?;
    let client = hapax::Client::with(hapax::Options { servers: vec![hapax], deadline: std::time::Duration::from_secs(60), ..hapax::Options::default() })?;
    let tasks: Vec<_> = (0..WORKERS).map(|_| tokio::spawn(insert(pool.clone(), client.tag("orders"), rows / WORKERS))).collect();
    for task in tasks {
        task.await??; // a number twice is an error of the primary key
    }
    let found: i64 = sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&pool).await?;
    pool.close().await;
    client.close();
    println!("{found} rows");
    if let Some(own) = own {
        let takes = own.takes();
        assert_eq!(found as usize, rows);
        assert!(takes > 0 && takes <= rows.max(10_000) / 500, "{takes} requests for {rows} rows");
        println!("{takes} requests");
    }
    Ok(())
}
