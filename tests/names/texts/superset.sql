-- top
SELECT product AS product, sum(qty) AS `SUM(qty)`
FROM main.shop.sales
WHERE sold_at >= TIMESTAMP '2026-02-01 00:00:00.000000' AND sold_at < TIMESTAMP '2026-06-01 00:00:00.000000' GROUP BY product ORDER BY `SUM(qty)` DESC
LIMIT 10;
-- month
SELECT date_trunc('MONTH', sold_at) AS __timestamp, sum(price) AS `SUM(price)`
FROM shop.sales
WHERE sold_at >= TIMESTAMP '2026-03-01 00:00:00.000000' AND sold_at < TIMESTAMP '2026-06-01 00:00:00.000000' GROUP BY date_trunc('MONTH', sold_at) ORDER BY `SUM(price)` DESC
LIMIT 10000;
-- having
SELECT product AS product, COUNT(*) AS count, sum(qty) AS `SUM(qty)`
FROM `main`.`shop`.`sales` GROUP BY product
HAVING ((sum(qty) > 60)) ORDER BY count DESC
LIMIT 1000;
-- total
SELECT sum(qty) AS `SUM(qty)`
FROM main.shop.sales
WHERE region IN ('north', 'east') AND sold_on >= DATE '2026-04-01' AND ((product != 'p01'))
LIMIT 50000;
-- segments
SELECT segment AS segment, sum(qty) AS `SUM(qty)`, COUNT(*) AS count
FROM (SELECT s.qty, s.sold_on, c.segment
FROM main.shop.sales s
JOIN main.shop.customers c ON s.customer_id = c.customer_id) AS virtual_table
WHERE sold_on >= DATE '2026-04-01' GROUP BY segment ORDER BY `SUM(qty)` DESC
LIMIT 1000;
-- values
SELECT DISTINCT product AS product
FROM shop.sales
WHERE sold_on >= DATE '2026-04-01' ORDER BY product ASC
LIMIT 1000;
-- series
SELECT date_trunc('MONTH', sold_at) AS __timestamp, product AS product, sum(qty) AS `SUM(qty)`
FROM main.shop.sales JOIN (SELECT product AS product__, sum(qty) AS mme_inner__
FROM main.shop.sales
WHERE sold_at >= TIMESTAMP '2026-02-01 00:00:00.000000' GROUP BY product ORDER BY mme_inner__ DESC
LIMIT 3) AS anon_1 ON product = product__
WHERE sold_at >= TIMESTAMP '2026-02-01 00:00:00.000000' GROUP BY date_trunc('MONTH', sold_at), product ORDER BY `SUM(qty)` DESC
LIMIT 10000;
-- rows
SELECT sold_at AS sold_at, product AS product, qty AS qty, price AS price
FROM main.shop.sales
WHERE qty >= 8 ORDER BY sold_at DESC, id ASC
LIMIT 100;
