# lme4 on the tasks of studies/rivals.py: reads a CSV of rows, writes a CSV of predictions.
# Rscript studies/rivals.R ROWS.csv MAIN CLASSES OUT.csv
# MAIN is the column that varies most within groups; labelled rows of new groups are part of the fit, as lme4 wants it.
suppressMessages({library(lme4); library(splines)})
words <- commandArgs(TRUE)
rows <- read.csv(words[1]); main <- words[2]; classes <- words[3] == "1"
rows$g <- factor(rows$g)
inputs <- grep("^x", names(rows), value = TRUE)
fit_of <- function(data, slopes) {
  used <- inputs[sapply(inputs, function(name) length(unique(data[[name]])) > 1)]
  smooth <- slopes && length(unique(data[[main]])) >= 8
  terms <- if (smooth) c(setdiff(used, main), sprintf("ns(%s, 4)", main)) else used
  random <- if (slopes) sprintf("(1 + %s | g)", main) else "(1 | g)"
  formula <- as.formula(paste("y ~", paste(c("1", terms, random), collapse = " + ")))
  if (classes) suppressWarnings(suppressMessages(glmer(formula, data, family = binomial, nAGQ = 0)))
  else suppressWarnings(suppressMessages(lmer(formula, data, control = lmerControl(calc.derivs = FALSE))))
}
spread_of <- function(fit, query, slopes) {
  z <- if (slopes) cbind(1, query[[main]]) else matrix(1, nrow(query), 1)
  prior <- as.matrix(VarCorr(fit)$g); effects <- ranef(fit, condVar = TRUE)$g
  post <- attr(effects, "postVar"); place <- match(as.character(query$g), rownames(effects))
  each <- sapply(seq_len(nrow(query)), function(i) {
    cover <- if (is.na(place[i])) prior else post[, , place[i]]
    sum((z[i, , drop = FALSE] %*% cover) * z[i, ])
  })
  sqrt(sigma(fit)^2 + pmax(each, 0))
}
found <- list()
for (shots in sort(unique(rows$shots[rows$shots >= 0]))) for (slopes in c(FALSE, TRUE)) {
  name <- if (slopes) "lme4-slopes" else "lme4"
  data <- rows[rows$part == "train" | (rows$part == "support" & rows$shots == shots), ]
  query <- rows[rows$part == "query" & rows$shots == shots, ]
  begun <- proc.time()[[1]]
  answer <- tryCatch({
    fit <- fit_of(data, slopes)
    mean <- suppressWarnings(predict(fit, query, allow.new.levels = TRUE, type = "response"))
    std <- if (classes) rep(0, nrow(query)) else spread_of(fit, query, slopes)
    data.frame(row = name, shots = shots, place = query$place, mean = mean, std = std,
               seconds = proc.time()[[1]] - begun)
  }, error = function(error) { message(name, " ", shots, ": ", conditionMessage(error)); NULL })
  found[[length(found) + 1]] <- answer
}
write.csv(do.call(rbind, found), words[4], row.names = FALSE)
